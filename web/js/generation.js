// One streamed generation, from the request to the numbers at its end.

import {ownRequests, stream} from './api.js';
import {count, rate, seconds} from './format.js';
import {tokensOf} from './tokens.js';

// handlers: onProgress(progress), onPrompt(ids), onDelta(index, text, tokens), onFinish(index, reason)
// Resolves to a summary; an abort resolves too, with stopped: true.
export async function generate({path, body, signal, onProgress, onPrompt, onDelta, onFinish}) {
  const started = performance.now();
  const summary = {ttftS: null, totalS: 0, tokens: 0, promptTokens: null, cachedTokens: 0, reasons: [],
    stopped: false};
  let id = null;
  try {
    for await (const chunk of stream(path, body, signal)) {
      if (chunk.id && id === null) ownRequests.add(id = chunk.id);
      if (chunk.prompt_progress) onProgress?.(chunk.prompt_progress);
      if (chunk.usage) {
        summary.promptTokens = chunk.usage.prompt_tokens;
        summary.tokens = chunk.usage.completion_tokens;
        summary.cachedTokens = chunk.usage.prompt_tokens_details?.cached_tokens ?? 0;
      }
      for (const choice of chunk.choices) {
        const promptIds = choice.prompt_token_ids ?? chunk.prompt_token_ids;
        if (promptIds) onPrompt?.(promptIds);
        const text = choice.text ?? choice.delta?.content ?? '';
        const tokens = tokensOf(choice);
        if (text !== '' || tokens.length > 0) {
          summary.ttftS ??= (performance.now() - started) / 1000;
          onDelta(choice.index, text, tokens);
        }
        if (choice.finish_reason) {
          summary.reasons[choice.index] = choice.finish_reason;
          onFinish?.(choice.index, choice.finish_reason);
        }
      }
    }
  } catch (error) {
    if (!signal?.aborted) throw error;
    summary.stopped = true;
  } finally {
    ownRequests.delete(id);
    summary.totalS = (performance.now() - started) / 1000;
  }
  return summary;
}

// A browser's clock and its queue of events know nothing of less.
const MEASURABLE_S = 0.005;

const REASONS = {stop: 'came to an end', length: 'reached max tokens', abort: 'was cancelled', timeout: 'ran out of time',
  error: 'failed'};

export function describe(summary) {
  const parts = [];
  if (summary.tokens > 0) {
    parts.push(`${count(summary.tokens)} tokens`);
    const decodeS = summary.totalS - (summary.ttftS ?? 0);
    if (summary.tokens > 1 && decodeS >= MEASURABLE_S) parts.push(`${rate((summary.tokens - 1) / decodeS)} tokens/s`);
  }
  if (summary.ttftS !== null) parts.push(`first token after ${seconds(summary.ttftS)}`);
  if (summary.cachedTokens > 0) parts.push(`${count(summary.cachedTokens)} of ${count(summary.promptTokens)} prompt tokens from the cache`);
  if (summary.stopped) parts.push('stopped');
  else if (summary.reasons.length) parts.push([...new Set(summary.reasons)].map((r) => REASONS[r] ?? r).join(', '));
  return parts.join(' · ');
}
