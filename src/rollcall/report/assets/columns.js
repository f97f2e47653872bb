// Columns of numbers, as timeline/encode.py wrote them.
const columns = {
  bytes(text) {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
    const raw = atob(text), bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    return bytes;
  },
  // In another thread.
  async inflate(text) {
    const stream = new Blob([columns.bytes(text)]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  },
  async read({ length, planes, differences, data }, unit = 1) {
    const bytes = await columns.inflate(data), values = new Float64Array(length);
    let factor = 1;
    for (let plane = 0; plane < planes; plane++, factor *= 256) {
      const at = plane * length;
      if (plane === 0) for (let i = 0; i < length; i++) values[i] = bytes[i];
      else for (let i = 0; i < length; i++) values[i] += bytes[at + i] * factor;
    }
    if (differences) {
      let sum = 0;
      for (let i = 0; i < length; i++) {
        const half = Math.floor(values[i] / 2);
        sum += values[i] - 2 * half ? -half - 1 : half;
        values[i] = sum;
      }
    }
    if (unit !== 1) for (let i = 0; i < length; i++) values[i] /= unit;
    return values;
  },
};
