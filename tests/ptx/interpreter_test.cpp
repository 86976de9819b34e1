// The interpreter on kernels written by hand: parsing, divergence, memory, and what it must refuse.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "tests/ptx/lexer.h"
#include "tests/ptx/ptx_test_support.h"

namespace {

using ptx_test::fault_of;
using ptx_test::mentions;
using ptx_test::run;

const std::string kStore = "st.global.u32 [%d1], %r1;";
constexpr uint32_t kOne = std::bit_cast<uint32_t>(1.0f);

TEST(PtxParser, NamesWhatItDoesNotKnow) {
  const auto message = [](const std::string& body) -> std::string {
    try {
      ptx::Module module(ptx_test::kernel(body));
      module.function("k");
    } catch (const ptx::ParseError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message(kStore), "");
  EXPECT_TRUE(mentions(message("tex.2d.v4.f32.f32 %r1, [%d0];"), "tex.2d"));
  EXPECT_TRUE(mentions(message("add.sat.f32 %f1, %f2, %f3;"), "add.sat.f32"));
  EXPECT_TRUE(mentions(message("bra NOWHERE;"), "NOWHERE"));
  EXPECT_TRUE(mentions(message("mov.u32 %r1, %q7;"), "%q7"));
  EXPECT_TRUE(mentions(message("A: A: mov.u32 %r1, 0;"), "twice"));
}

TEST(PtxParser, ScopesHideNames) {
  // Inline assembly declares registers of its own.
  const auto out =
      run("mov.u32 %r1, 5; { .reg .b32 %r<3>; mov.u32 %r1, 9; { .reg .b32 t; mov.b32 t, %r1; } }" + kStore);
  EXPECT_EQ(out[0], 5u);
}

TEST(PtxWarp, SidesOfABranchMeetAgain) {
  // Lanes below 7 add 100, even ones of the others 200; then all of them shuffle together.
  const auto out = run(R"(
    mov.u32 %r1, %r0;
    setp.lt.u32 %p1, %r0, 7;
    @!%p1 bra ELSE;
    add.u32 %r1, %r1, 100;
    bra.uni JOIN;
  ELSE:
    and.b32 %r2, %r0, 1;
    setp.ne.u32 %p2, %r2, 0;
    @%p2 bra JOIN;
    add.u32 %r1, %r1, 200;
  JOIN:
    shfl.sync.bfly.b32 %r1|%p3, %r1, 1, 31, -1;
  )" + kStore);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    const uint32_t other = lane ^ 1;
    EXPECT_EQ(out[lane], other + (other < 7 ? 100 : other % 2 == 0 ? 200 : 0));
  }
}

TEST(PtxWarp, LoopsOfDifferentLengthsMeetBehindTheLoop) {
  const auto out = run(R"(
    mov.u32 %r1, 0; mov.u32 %r2, 0;
  LOOP:
    setp.ge.u32 %p1, %r2, %r0;
    @%p1 bra DONE;
    add.u32 %r1, %r1, %r2; add.u32 %r2, %r2, 1;
    bra.uni LOOP;
  DONE:
    bar.warp.sync -1;
    shfl.sync.idx.b32 %r1, %r1, 31, 31, -1;
  )" + kStore);
  EXPECT_EQ(out[0], 31u * 30 / 2);
}

TEST(PtxWarp, LanesThatEndedAreNotWaitedFor) {
  const auto out = run(R"(
    setp.ge.u32 %p1, %r0, 40;
    @%p1 ret;
    bar.sync 0;
    mov.u32 %r1, 1;
  )" + kStore,
                       {.threads = 64});
  EXPECT_EQ(out[0] + out[39], 2u);
  EXPECT_EQ(out[40], 0u);
}

TEST(PtxWarp, WhoHasToWaitLetsTheOtherSideGoFirst) {
  // The sides never meet: one of them ends, the other one needs the barrier.
  for (const std::string& guard : {std::string("@%p1"), std::string("@!%p1")}) {
    const auto out = run(R"(
      setp.lt.u32 %p1, %r0, 5;
      )" + guard + R"( bra STAY;
      st.global.u32 [%d1], 7;
      ret;
    STAY:
      bar.sync 0;
      mov.u32 %r1, 3;
    )" + kStore);
    EXPECT_EQ(out[0] + out[31], 10u);
  }
}

TEST(PtxWarp, RefusesWhatAWarpCannotDo) {
  const std::string half = "setp.lt.u32 %p1, %r0, 16; @%p1 bra A; bra.uni B; A: ";
  EXPECT_TRUE(mentions(fault_of([&] { run(half + "bar.sync 0; B: mov.u32 %r1, 0;"); }), "divergence"));
  EXPECT_TRUE(mentions(fault_of([&] { run(half + "shfl.sync.idx.b32 %r1, %r0, 0, 31, -1; B: mov.u32 %r1, 0;"); }),
                       "divergence"));
  EXPECT_TRUE(mentions(fault_of([&] { run(half + "shfl.sync.idx.b32 %r1, %r0, 20, 31, 65535; B: mov.u32 %r1, 0;"); }),
                       "takes no part"));
  EXPECT_TRUE(mentions(fault_of([&] { run("vote.sync.ballot.b32 %r1, %p1, 1;"); }), "not in its own mask"));
  EXPECT_TRUE(mentions(
      fault_of([&] { run("setp.lt.u32 %p1, %r0, 32; @%p1 bra A; bar.sync 0; A: bar.sync 0;", {.threads = 64}); }),
      "divergent barrier"));
  EXPECT_TRUE(mentions(fault_of([&] { run("vote.sync.ballot.b32 %r1, %p1, -1;", {.threads = 16}); }),
                       "have ended or do not exist"));
}

TEST(PtxWarp, ShufflesAndVotes) {
  const auto shuffle = [](const std::string& mode, const std::string& operands) {
    return run("shfl.sync." + mode + ".b32 %r1|%p1, %r0, " + operands + ", -1; @!%p1 add.u32 %r1, %r1, 1000;" + kStore);
  };
  EXPECT_EQ(shuffle("up", "2, 0")[1], 1001u);
  EXPECT_EQ(shuffle("up", "2, 0")[9], 7u);
  EXPECT_EQ(shuffle("down", "3, 31")[30], 1030u);
  EXPECT_EQ(shuffle("idx", "5, 6175")[13], 13u);  // segments of 8: 0x181f
  EXPECT_EQ(shuffle("bfly", "16, 31")[3], 19u);
  EXPECT_EQ(run("setp.gt.u32 %p1, %r0, 29; vote.sync.ballot.b32 %r1, %p1, -1;" + kStore)[4], 0xc0000000u);
  EXPECT_EQ(run("setp.gt.u32 %p1, %r0, 29; vote.sync.any.pred %p2, %p1, -1; selp.b32 %r1, 1, 0, %p2;" + kStore)[4], 1u);
  EXPECT_EQ(run("redux.sync.max.u32 %r1, %r0, -1;" + kStore)[4], 31u);
  EXPECT_EQ(run("setp.eq.u32 %p1, %r0, 63; bar.red.or.pred %p2, 0, %p1; selp.b32 %r1, 1, 0, %p2;" + kStore,
                {.threads = 64})[0],
            1u);
}

TEST(PtxArithmetic, IntegersWrapAndCarry) {
  const auto value = [](const std::string& body) { return run(body + kStore)[3]; };
  EXPECT_EQ(value("mov.u32 %r2, -5; shr.s32 %r1, %r2, 40;"), 0xffffffffu);
  EXPECT_EQ(value("mov.u32 %r2, 1; shl.b32 %r1, %r2, 32;"), 0u);
  EXPECT_EQ(value("mov.u32 %r2, -7; div.s32 %r1, %r2, 2;"), static_cast<uint32_t>(-3));
  EXPECT_EQ(value("mov.u32 %r2, -2; mul.hi.u32 %r1, %r2, %r2;"), 0xfffffffcu);
  EXPECT_EQ(value("mov.u32 %r2, -1; add.cc.u32 %r3, %r2, 1; addc.u32 %r1, 5, 0;"), 6u);
  EXPECT_EQ(value("mov.u32 %r2, 0; sub.cc.u32 %r3, %r2, 1; subc.u32 %r1, 5, 0;"), 4u);
  EXPECT_EQ(value("mov.u32 %r2, -1; mad.lo.cc.u32 %r3, %r2, 2, 2; madc.hi.u32 %r1, %r2, 2, 0;"), 2u);
  EXPECT_EQ(value("mov.u32 %r2, 0x12345678; mov.u32 %r3, 0x9abcdef0; prmt.b32 %r1, %r2, %r3, 0xc740;"), 0xff9af078u);
  EXPECT_EQ(value("mov.u32 %r2, 0xff; bfi.b32 %r1, %r2, 0, 4, 6;"), 0x3f0u);
  EXPECT_EQ(value("mov.u32 %r2, 0x80; bfe.s32 %r1, %r2, 4, 4;"), 0xfffffff8u);
  EXPECT_EQ(value("mov.u32 %r2, 0x00f0; bfind.shiftamt.u32 %r1, %r2;"), 24u);
  EXPECT_EQ(value("mov.u16 %h1, -3; cvt.s32.s16 %r1, %h1;"), static_cast<uint32_t>(-3));
  EXPECT_EQ(value("mov.u32 %r2, 300; cvt.sat.s8.s32 %h1, %r2; cvt.u32.u16 %r1, %h1;"), 127u);
}

TEST(PtxArithmetic, FloatsRoundAsAsked) {
  const auto value = [](const std::string& body) { return run(body + "mov.b32 %r1, %f1;" + kStore)[3]; };
  EXPECT_EQ(value("mov.f32 %f2, 0f3F800000; mov.f32 %f3, 0f2F800000; fma.rm.f32 %f1, %f3, %f3, %f2;"), kOne);
  EXPECT_EQ(value("mov.f32 %f2, 0f3F800000; mov.f32 %f3, 0f2F800000; fma.rp.f32 %f1, %f3, %f3, %f2;"), kOne + 1);
  EXPECT_EQ(value("mov.f32 %f2, 0f7FC00000; mov.f32 %f3, 0f3F800000; max.f32 %f1, %f2, %f3;"), kOne);
  EXPECT_EQ(value("mov.f32 %f2, 0fC31E0000; ex2.approx.ftz.f32 %f1, %f2;"), 0u);
  EXPECT_EQ(value("mov.f32 %f2, 0f40200000; cvt.rni.f32.f32 %f1, %f2;"), std::bit_cast<uint32_t>(2.0f));
  const auto integer = [](const std::string& body) { return run(body + kStore)[3]; };
  EXPECT_EQ(integer("mov.f32 %f2, 0f7FC00000; cvt.rzi.s32.f32 %r1, %f2;"), 0u);
  EXPECT_EQ(integer("mov.f32 %f2, 0f5F000000; cvt.rzi.s32.f32 %r1, %f2;"), 0x7fffffffu);
  EXPECT_EQ(integer("mov.f32 %f2, 0f477FF000; mov.f32 %f3, 0f3F800000; cvt.rn.f16x2.f32 %r1, %f2, %f3;"), 0x7c003c00u);
  EXPECT_EQ(integer("mov.f32 %f2, 0f3F80C000; mov.f32 %f3, 0fC0000000; cvt.rn.bf16x2.f32 %r1, %f2, %f3;"), 0x3f81c000u);
  // 1152 - 1152 and 1279 - 1152; the least subnormal times 256 and an odd multiple of it times a half; infinity.
  const std::string halves = "mov.u32 %r2, 0x64FF6480; mov.u32 %r3, 0x64806480; ";
  EXPECT_EQ(integer(halves + "sub.f16x2 %r1, %r2, %r3;"), 0x57f00000u);
  EXPECT_EQ(integer(halves + "add.f16x2 %r1, %r2, %r3;"), 0x68c06880u);
  EXPECT_EQ(integer("mov.u32 %r2, 0x00030001; mov.u32 %r3, 0x38005C00; mul.f16x2 %r1, %r2, %r3;"), 0x00020100u);
  EXPECT_EQ(integer("mov.u32 %r2, 0x7BFF7F80; mov.u32 %r3, 0x5C005C00; mul.f16x2 %r1, %r2, %r3;") >> 16, 0x7c00u);
  EXPECT_EQ(integer("mov.f32 %f2, 0f43E10000; mov.f32 %f3, 0f3F800000; cvt.rn.satfinite.e4m3x2.f32 %h1, %f2, %f3; "
                    "cvt.u32.u16 %r1, %h1;"),
            0x7e38u);
  EXPECT_EQ(integer("mov.f32 %f2, 0f7FC00000; setp.ltu.f32 %p1, %f2, 0f00000000; selp.b32 %r1, 1, 0, %p1;"), 1u);
}

TEST(PtxMemory, EverySpaceHasItsAddresses) {
  // A shared variable, dynamic shared memory, a generic pointer to shared memory, local memory, and a function call.
  const std::string variables =
      ".extern .shared .align 128 .b8 dynamic[];\n.global .align 4 .b8 table[8] = {1, 0, 0, 0, 2, 0, 0, 0};\n"
      ".func (.param .b32 result) twice(.param .b32 x)\n{\n.reg .b32 %r<4>; .reg .pred %p<2>;\n"
      "ld.param.u32 %r1, [x]; setp.gt.u32 %p1, %r1, 30; @%p1 bra BIG; add.u32 %r2, %r1, %r1; st.param.b32 [result], "
      "%r2; ret;\n"
      "BIG: st.param.b32 [result], 1000; ret;\n}\n";
  const auto out = run(R"(
    .shared .align 4 .b8 own[128];
    .local .align 4 .b8 stack[8];
    mov.u32 %r2, own; shl.b32 %r3, %r0, 2; add.u32 %r4, %r2, %r3;
    st.shared.u32 [%r4], %r0;
    mov.u32 %r5, dynamic; add.u32 %r6, %r5, %r3;
    bar.sync 0;
    cvt.u64.u32 %d2, %r4; cvta.shared.u64 %d3, %d2;
    ld.u32 %r7, [%d3];
    st.shared.u32 [%r6+4], %r7;
    mov.u64 %d4, stack; st.local.u32 [%d4+4], %r7; ld.local.u32 %r8, [%d4+4];
    mov.u64 %d5, table; ld.global.u32 %r9, [%d5+4];
    { .param .b32 a; st.param.b32 [a+0], %r8; .param .b32 b; call.uni (b), twice, (a); ld.param.b32 %r1, [b+0]; }
    add.u32 %r1, %r1, %r9;
  )" + kStore,
                       {.dynamic_shared = 132, .variables = variables});
  EXPECT_EQ(out[3], 8u);
  EXPECT_EQ(out[31], 1002u);
}

TEST(PtxMemory, RefusesAddressesOutsideOfEverything) {
  EXPECT_TRUE(mentions(fault_of([] { run("st.global.u32 [%d1+4], %r0;"); }), "out of the bounds of every allocation"));
  EXPECT_TRUE(mentions(fault_of([] { run("st.global.u32 [%d1+2], %r0;"); }), "not aligned"));
  EXPECT_TRUE(mentions(fault_of([] {
                         run(".shared .align 4 .b8 a[128]; mov.u32 %r2, a; shl.b32 %r3, %r0, 2; add.u32 %r2, %r2, %r3; "
                             "st.shared.u32 [%r2+4], %r0;");
                       }),
                       "thread 31 writes 4 bytes of shared memory"));
  EXPECT_TRUE(
      mentions(fault_of([] { run("mov.u32 %r1, 0;", {.dynamic_shared = 200 * 1024}); }), "bytes of shared memory"));
  EXPECT_TRUE(
      mentions(fault_of([] { run(".shared .align 4 .b8 a[49156]; mov.u32 %r1, a;"); }), "static shared memory"));
}

TEST(PtxMemory, AtomicsDoNotLoseUpdates) {
  const auto out = run("atom.global.add.u32 %r1, [%d0], %r0; red.global.max.u32 [%d0+4], %r0;",
                       {.threads = 64, .blocks = 3, .elements = 2});
  EXPECT_EQ(out[0], 3u * 63 * 64 / 2);
  EXPECT_EQ(out[1], 63u);
}

TEST(PtxMemory, CopiesArriveWhenTheyAreWaitedFor) {
  const std::string start = R"(.shared .align 16 .b8 a[128]; mov.u32 %r2, a; shl.b32 %r3, %r0, 2; add.u32 %r4, %r2, %r3;
    st.global.u32 [%d1], %r0; cp.async.ca.shared.global [%r4], [%d1], 4, 4;)";
  const std::string commit = "cp.async.commit_group;", wait = "cp.async.wait_group 0;";
  const std::string neighbour = "xor.b32 %r5, %r3, 4; add.u32 %r5, %r5, %r2; ld.shared.u32 %r1, [%r5];";
  EXPECT_EQ(fault_of([&] { run(start + commit + wait + "bar.sync 0;" + neighbour); }), "");
  EXPECT_TRUE(mentions(fault_of([&] { run(start + wait + "bar.sync 0;" + neighbour); }), "under way"));
  EXPECT_TRUE(
      mentions(fault_of([&] { run(start + commit + "cp.async.wait_group 1; bar.sync 0;" + neighbour); }), "under way"));
  EXPECT_TRUE(mentions(fault_of([&] { run(start + commit + wait + neighbour); }), "a race"));
  EXPECT_TRUE(mentions(fault_of([&] { run(start + commit); }), "ends while"));
  // Two groups: the older one has landed.
  const auto out = run(start + commit + commit +
                       "cp.async.wait_group 1; bar.sync 0; ld.shared.u32 %r1, [%r4]; add.u32 %r1, %r1, 1;" + kStore);
  EXPECT_EQ(out[9], 10u);
}

TEST(PtxRaces, AreSeenWhateverTheOrderWas) {
  const std::string shared = ".shared .align 4 .b8 a[512]; mov.u32 %r2, a; shl.b32 %r3, %r0, 2; add.u32 %r4, %r2, %r3;";
  const std::string read_next =
      "add.u32 %r5, %r0, 1; and.b32 %r5, %r5, 63; shl.b32 %r5, %r5, 2; add.u32 %r5, %r5, %r2; ld.shared.u32 %r1, "
      "[%r5];";
  const auto races = [&](const std::string& body, uint32_t threads = 64, uint32_t blocks = 1) {
    return fault_of([&] {
             run(shared + body, {.threads = threads, .blocks = blocks, .elements = 64});
           }).find("a race") != std::string::npos;
  };
  const std::string write = "st.shared.u32 [%r4], %r0;", barrier = "bar.sync 0;", sync = "bar.warp.sync -1;";
  EXPECT_FALSE(races(write + barrier + read_next));
  EXPECT_TRUE(races(write + read_next));
  EXPECT_TRUE(races(write + sync + read_next)) << "another warp's element";
  EXPECT_FALSE(races("and.b32 %r6, %r0, 31; " + write + sync +
                     "xor.b32 %r5, %r3, 4; add.u32 %r5, %r5, %r2; ld.shared.u32 %r1, [%r5];"));
  EXPECT_TRUE(races(write + "xor.b32 %r5, %r3, 4; add.u32 %r5, %r5, %r2; ld.shared.u32 %r1, [%r5];"))
      << "lanes run on their own";
  EXPECT_TRUE(races(write + barrier + read_next + write)) << "written while others may still read";
  EXPECT_FALSE(races(write + barrier + read_next + barrier + write));
  EXPECT_TRUE(races("st.shared.u32 [%r2], %r0;")) << "two writers";
  EXPECT_FALSE(races("st.shared.u32 [%r2], 5;")) << "of the same value";
  EXPECT_FALSE(races("cvt.u16.u32 %h1, %r0; add.u32 %r4, %r2, %r0; st.shared.u8 [%r4], %h1;")) << "bytes of one word";
  EXPECT_TRUE(races("ld.global.u32 %r1, [%d0]; add.u32 %r1, %r1, 1; st.global.u32 [%d0], %r1;", 1, 2))
      << "a lost update";
  EXPECT_TRUE(races("st.global.u32 [%d1], %r0; " + barrier + "ld.global.u32 %r1, [%d0];", 32, 2))
      << "blocks have no barrier";
  EXPECT_TRUE(races("setp.eq.u32 %p1, %r0, 0; @%p1 st.shared.u32 [%r2], 0; atom.shared.add.u32 %r1, [%r2], 1;"));
}

TEST(PtxTraffic, CountsBankConflictsAndSectors) {
  const auto cost = [](const std::string& access) {
    std::vector<ptx::Traffic> traffic;
    run(".shared .align 16 .b8 a[16384]; mov.u32 %r2, a;" + access, {.elements = 4096}, &traffic);
    ptx::Traffic sum;
    for (const ptx::Traffic& one : traffic) {
      sum.wavefronts += one.wavefronts;
      sum.least_wavefronts += one.least_wavefronts;
      sum.sectors += one.sectors;
      sum.least_sectors += one.least_sectors;
    }
    return std::vector<uint64_t>{sum.wavefronts, sum.least_wavefronts, sum.sectors, sum.least_sectors};
  };
  const auto shared = [&](const std::string& stride, const std::string& type, const std::string& value) {
    return cost("mul.lo.u32 %r3, %r0, " + stride + "; add.u32 %r3, %r3, %r2; st.shared." + type + " [%r3], " + value +
                ";");
  };
  using Cost = std::vector<uint64_t>;
  EXPECT_EQ(shared("4", "u32", "%r0"), (Cost{1, 1, 0, 0}));
  EXPECT_EQ(shared("8", "u32", "%r0"), (Cost{2, 1, 0, 0}));
  EXPECT_EQ(shared("128", "u32", "%r0"), (Cost{32, 1, 0, 0}));
  EXPECT_EQ(shared("16", "v4.u32", "{%r0, %r0, %r0, %r0}"), (Cost{4, 4, 0, 0}));
  EXPECT_EQ(shared("80", "v4.u32", "{%r0, %r0, %r0, %r0}"), (Cost{4, 4, 0, 0})) << "rows padded by 16 bytes";
  EXPECT_EQ(shared("64", "v4.u32", "{%r0, %r0, %r0, %r0}"), (Cost{16, 4, 0, 0}));
  EXPECT_EQ(shared("0", "u32", "5"), (Cost{1, 1, 0, 0})) << "one word for all";
  EXPECT_EQ(cost("st.global.u32 [%d1], %r0;"), (Cost{0, 0, 4, 4}));
  EXPECT_EQ(cost("mul.wide.u32 %d2, %r0, 32; add.s64 %d2, %d2, %d0; st.global.u32 [%d2], %r0;"), (Cost{0, 0, 32, 4}));
}

TEST(PtxTensorCores, MultiplyMatrices) {
  // A [16][16] and B [8][16] (columns) as bytes of shared memory, through ldmatrix and mma; C must be A times B^T.
  // A[r][k] = r == k, so C[r][n] = B[n][r] = r + 16 n: fragments that were mixed up would show.
  const auto out = run(R"(
    .shared .align 16 .b8 a[512]; .shared .align 16 .b8 b[256];
    mov.u32 %r2, a; mov.u32 %r3, b; mov.u32 %r4, %r0;
  FILL:
    shr.u32 %r5, %r4, 4; and.b32 %r6, %r4, 15;
    setp.eq.u32 %p1, %r5, %r6; selp.f32 %f1, 0f3F800000, 0f00000000, %p1; cvt.rn.f16.f32 %h1, %f1;
    shl.b32 %r7, %r4, 1; add.u32 %r8, %r7, %r2; st.shared.u16 [%r8], %h1;
    setp.lt.u32 %p2, %r4, 128; cvt.rn.f32.u32 %f2, %r4; cvt.rn.f16.f32 %h2, %f2;
    add.u32 %r8, %r7, %r3; @%p2 st.shared.u16 [%r8], %h2;
    add.u32 %r4, %r4, 32; setp.lt.u32 %p3, %r4, 256; @%p3 bra FILL;
    bar.sync 0;
    and.b32 %r9, %r0, 15; shl.b32 %r9, %r9, 5; shr.u32 %r10, %r0, 4; shl.b32 %r10, %r10, 4; add.u32 %r9, %r9, %r10; add.u32 %r9, %r9, %r2;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r20, %r21, %r22, %r23}, [%r9];
    and.b32 %r9, %r0, 7; shl.b32 %r9, %r9, 5; and.b32 %r10, %r0, 8; shl.b32 %r10, %r10, 1; add.u32 %r9, %r9, %r10; add.u32 %r9, %r9, %r3;
    ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r24, %r25}, [%r9];
    mov.f32 %f4, 0f3F800000; mov.f32 %f5, %f4; mov.f32 %f6, %f4; mov.f32 %f7, %f4;
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f4, %f5, %f6, %f7}, {%r20, %r21, %r22, %r23}, {%r24, %r25}, {%f4, %f5, %f6, %f7};
    mul.wide.u32 %d2, %r0, 16; add.s64 %d2, %d2, %d0; st.global.v4.f32 [%d2], {%f4, %f5, %f6, %f7};
  )",
                       {.elements = 128});
  for (uint32_t lane = 0; lane < 32; ++lane) {
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      EXPECT_EQ(std::bit_cast<float>(out[4 * lane + i]), static_cast<float>(row + 16 * column + 1))
          << lane << ", " << i;
    }
  }
}

}  // namespace
