// How many prompt tokens the engine has really computed so far.
//
// The counters of /metrics move when a prompt is complete (its length) and when it is scheduled (what the prefix cache had of
// it); a prompt of half a million tokens would show nothing for a minute and a spike at its end. What is under way is in
// /v1/requests:
//
//   computed = prompt_tokens_total - prefix_cache_hits_total + processed tokens of the requests that are still reading
//
// The two are not read at the same instant, so a single reading may be too high or too low. The truth never falls: a
// reading above the next one was too high, which is why the result is one reading late; one below an earlier one was too
// low and is passed over. Only when the fall lasts was it real: a prompt was cancelled while it was being read.

const LASTING = 3; // a single low reading counts twice, with each of its neighbours

export class PromptCounter {
  #latest = null; // the newest reading
  #settled = null; // the newest reading that is not too high
  #total = null;
  #falls = 0;

  // Returns the number at the reading before this one, null at first. It never falls.
  add(metrics, requests) {
    const reading = requests.filter((r) => r.state === 'prefill').reduce((sum, r) => sum + r.processed_tokens, 0);
    const now = metrics.value('bam_prompt_tokens_total') - metrics.value('bam_prefix_cache_hits_total') + reading;
    if (this.#latest !== null) this.#settle(Math.min(this.#latest, now));
    this.#latest = now;
    return this.#total;
  }

  #settle(value) {
    if (this.#settled === null) {
      this.#total = value;
    } else if (value >= this.#settled) {
      this.#total += value - this.#settled;
    } else if (++this.#falls < LASTING) {
      return;
    }
    this.#falls = 0;
    this.#settled = value;
  }

  // After a pause or a restart of the server.
  reset() {
    this.#latest = null;
    this.#settled = null;
    this.#total = null;
    this.#falls = 0;
  }
}
