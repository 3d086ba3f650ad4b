// The price in neurons: cost_per_infer + Σ coefficient × metric, in the order of the metrics' names.
//
// A metric without a coefficient is free, a coefficient without a metric counts nothing. An error of a
// hook is thrown: the value that is thrown is the `error` of its result.

export const lifecycle = {
  configure(settings) {
    if (Object.keys(JSON.parse(settings || "{}")).length > 0) {
      throw [{ path: "", message: "this plugin takes no settings" }];
    }
  },
};

// By code points, as the gateway orders names; `<` on strings would order by UTF-16 units.
function byName(a, b) {
  const left = Array.from(a.metric, (c) => c.codePointAt(0));
  const right = Array.from(b.metric, (c) => c.codePointAt(0));
  const at = left.findIndex((unit, index) => unit !== right[index]);
  return at < 0 ? left.length - right.length : left[at] - (right[at] ?? -1);
}

export const billing = {
  price(tariff, usage) {
    const charge = { total: tariff.costPerInfer, base: tariff.costPerInfer, lines: [], visible: [] };
    for (const { metric, neurons } of tariff.coefficients.toSorted(byName)) {
      const found = usage.metrics.find(({ name }) => name === metric);
      if (!found) continue;
      const line = { metric, quantity: found.value, neurons: neurons * found.value };
      charge.total += line.neurons;
      charge.lines.push(line);
      charge.visible.push(metric);
    }
    return charge;
  },
};
