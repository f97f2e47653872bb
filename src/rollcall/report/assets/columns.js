// Columns of numbers, as pack.py wrote them.
const columns = {
  async inflate(text) {
    const raw = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  },
  async read({ length, planes, differences, data }) {
    const bytes = await columns.inflate(data);
    const values = new Float64Array(length);
    for (let plane = planes - 1; plane >= 0; plane--) {
      const at = plane * length;
      for (let i = 0; i < length; i++) values[i] = values[i] * 256 + bytes[at + i];
    }
    if (differences) {
      let sum = 0;
      for (let i = 0; i < length; i++) {
        const half = Math.floor(values[i] / 2);
        sum += values[i] % 2 ? -half - 1 : half;
        values[i] = sum;
      }
    }
    return values;
  },
};
