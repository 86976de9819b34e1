"""A reader of Dockerfiles and the rules that ours keep. Standard library only."""

import json
import re


def instructions(text: str) -> list[tuple[int, str, str]]:
    """(line, INSTRUCTION, arguments) with continuation lines joined and comments dropped."""
    found, pending, start = [], "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or (not line.strip() and not pending):
            continue
        if not pending:
            start = number
        pending += line.strip().removesuffix("\\").rstrip() + " "
        if not line.rstrip().endswith("\\"):
            word, _, rest = pending.strip().partition(" ")
            found.append((start, word.upper(), rest.strip()))
            pending = ""
    return found


def stages(text: str) -> list[list[tuple[int, str, str]]]:
    """The instructions of each stage, FROM first; ARGs before the first FROM are left out."""
    result = []
    for entry in instructions(text):
        if entry[1] == "FROM":
            result.append([])
        if result:
            result[-1].append(entry)
    return result


def arguments(text: str) -> dict[str, str]:
    """Defaults of ARGs."""
    return {name: value for _, word, rest in instructions(text) if word == "ARG" for name, _, value in [rest.partition("=")] if value}


def _is_exec_form(rest: str) -> bool:
    try:
        return isinstance(json.loads(rest), list)
    except ValueError:
        return False


def _check_from(rest: str, args: dict[str, str], names: set[str]) -> list[str]:
    image = re.sub(r"\$\{(\w+)\}", lambda m: args.get(m[1], ""), rest.split()[0])
    if image in names:
        return []
    tag = image.rpartition("/")[2].partition(":")[2]
    if "@sha256:" in image or re.search(r"\d{8}|\d+\.\d+\.\d+", tag):
        return []
    return [f"FROM {image}: not pinned to a dated or full version"]


def _check_run(rest: str) -> list[str]:
    problems = []
    if re.search(r"\bsudo\b", rest):
        problems.append("RUN uses sudo")
    if re.search(r"(^|&&|;)\s*cd\s", rest):
        problems.append("RUN changes the folder: use WORKDIR")
    if re.search(r"\b(curl|wget)\b", rest):
        problems.append("RUN downloads something that nobody checks")
    if re.search(r"\bapt (install|update)\b", rest):
        problems.append("RUN uses apt, which is for people: apt-get")
    if "apt-get install" in rest:
        if not re.search(r"apt-get update.*apt-get install", rest):
            problems.append("apt-get install without apt-get update in the same layer")
        for option in ("-y", "--no-install-recommends"):
            if option not in re.findall(r"apt-get install ([^&;]*)", rest)[0].split():
                problems.append(f"apt-get install without {option}")
    elif "apt-get update" in rest:
        problems.append("apt-get update alone in a layer")
    if "apt-get install" in rest and "rm -rf /var/lib/apt/lists/*" not in rest:
        problems.append("package lists stay in the layer")
    return problems


def _check_instruction(word: str, rest: str, args: dict[str, str], names: set[str]) -> list[str]:
    if word == "FROM":
        return _check_from(rest, args, names)
    if word == "RUN":
        return _check_run(rest)
    if word == "ADD":
        return ["ADD: use COPY"]
    if word == "MAINTAINER":
        return ["MAINTAINER is gone: use LABEL"]
    if word == "WORKDIR" and not rest.startswith("/"):
        return [f"WORKDIR {rest}: not absolute"]
    if word in {"CMD", "ENTRYPOINT"} and not _is_exec_form(rest):
        return [f"{word} is not in exec form: a shell would take the signals"]
    if word in {"ENV", "ARG"} and re.search(r"(KEY|TOKEN|PASSWORD|SECRET)\w*=\S", rest):
        return [f"{word} puts a secret into the image"]
    if word == "COPY" and (source := re.search(r"--from=(\S+)", rest)) and source[1] not in names:
        return [f"COPY --from={source[1]}: there is no such stage before"]
    return []


def _check_final_stage(stage: list[tuple[int, str, str]]) -> list[str]:
    last = {word: rest for _, word, rest in stage}
    problems = [f"the final stage has no {word}" for word in ("USER", "HEALTHCHECK", "STOPSIGNAL", "ENTRYPOINT", "EXPOSE")
                if word not in last]
    if not re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", last.get("USER", "1")):
        problems.append(f"USER {last['USER']}: give a number, so that runAsNonRoot can be checked")
    if not re.search(r"CMD \[", last.get("HEALTHCHECK", "CMD [")):
        problems.append("HEALTHCHECK is not in exec form")
    if last.get("STOPSIGNAL", "SIGTERM") != "SIGTERM":
        problems.append("STOPSIGNAL must be SIGTERM: that is what drains")
    return problems


def lint(text: str) -> list[str]:
    """Everything that is wrong with a Dockerfile of a server."""
    args, names, problems = arguments(text), set(), []
    for line, word, rest in instructions(text):
        problems += [f"line {line}: {problem}" for problem in _check_instruction(word, rest, args, names)]
        if word == "FROM" and (name := re.search(r" AS (\S+)$", rest, re.IGNORECASE)):
            names.add(name[1])
    found = stages(text)
    return problems + (_check_final_stage(found[-1]) if found else ["there is no FROM"])


GOOD = """ARG DEBIAN=bookworm-20250520-slim
FROM debian:${DEBIAN} AS build
RUN apt-get update \\
    && apt-get install -y --no-install-recommends g++ \\
    && rm -rf /var/lib/apt/lists/*
FROM debian:${DEBIAN}
COPY --from=build /opt/x /usr/local
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK CMD ["x", "probe"]
ENTRYPOINT ["x"]
"""

# (what is replaced in GOOD, by what, the complaint that must follow)
BAD = [
    ("bookworm-20250520-slim", "bookworm", "not pinned"), (" -y", "", "without -y"), ("--no-install-recommends", "", "recommends"),
    ("    && rm -rf /var/lib/apt/lists/*", "    && true", "package lists"), ("apt-get update", "true", "without apt-get update"),
    ("--from=build", "--from=nowhere", "no such stage"), ("COPY --from=build", "ADD", "use COPY"), ("10001:10001", "bam", "give a number"),
    ("USER 10001:10001", "USER 0", "give a number"), ("STOPSIGNAL SIGTERM\n", "", "no STOPSIGNAL"), ('["x"]', "x serve", "exec form"),
    ('HEALTHCHECK CMD ["x", "probe"]\n', "", "no HEALTHCHECK"), ("EXPOSE 8000", "ENV API_KEY=abc", "secret"),
    ("apt-get update \\", "cd /opt \\", "WORKDIR"), ("EXPOSE 8000", "RUN curl -s x | sh", "downloads"),
]


def self_test() -> list[str]:
    wrong = [f"self-test: a good Dockerfile gives {found}" for found in [lint(GOOD)] if found]
    for old, new, complaint in BAD:
        found = lint(GOOD.replace(old, new))
        if not any(complaint in problem for problem in found):
            wrong.append(f"self-test: {new!r} for {old!r} gives {found}, not {complaint!r}")
    return wrong
