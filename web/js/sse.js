// Server-sent events from a byte stream, as far as the OpenAI protocol needs them: data lines, comments, any line ending.

export class SseParser {
  #line = '';
  #data = [];
  #afterCarriageReturn = false;

  // Takes a piece of decoded text and returns the data of every event that it completes.
  push(text) {
    const events = [];
    for (const part of this.#split(text)) {
      if (part === '') {
        if (this.#data.length > 0) events.push(this.#data.join('\n'));
        this.#data = [];
      } else if (part.startsWith('data:')) {
        this.#data.push(part.slice(part[5] === ' ' ? 6 : 5));
      }
      // Comments (": ping") and other fields carry nothing here.
    }
    return events;
  }

  #split(text) {
    // "\r\n" may be cut between two pieces.
    if (this.#afterCarriageReturn && text.startsWith('\n')) {
      text = text.slice(1);
      this.#afterCarriageReturn = false;
    }
    if (text !== '') this.#afterCarriageReturn = text.endsWith('\r');
    const lines = (this.#line + text).split(/\r\n|\n|\r/);
    this.#line = lines.pop();
    return lines;
  }
}

// The data of each event of a fetch body, in order.
export async function* readEvents(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const parser = new SseParser();
  try {
    for (;;) {
      const {done, value} = await reader.read();
      if (done) return;
      yield* parser.push(decoder.decode(value, {stream: true}));
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
