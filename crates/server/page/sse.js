// Server-sent events out of a response's body, however the network cuts it.

/** Yields {comment} and {data} in order. The body is cancelled when the caller stops early. */
export async function* serverSentEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      // Only the new text is searched for line ends, so a long line in many pieces costs no more than a short one.
      const lines = value.split("\n");
      lines[0] = pending + lines[0];
      pending = lines.pop();
      for (const ended of lines) {
        const line = ended.endsWith("\r") ? ended.slice(0, -1) : ended;
        if (line === "") {
          if (data.length > 0) yield { data: data.join("\n") };
          data = [];
        } else if (line.startsWith(":")) yield { comment: line.slice(1).trim() };
        else if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
