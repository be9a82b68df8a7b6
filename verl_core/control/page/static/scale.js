// Axes and lines as arithmetic: ticks, smoothing, thinning. Nothing here touches the page.

/** Round numbers from low to high, about `many`. */
export function ticks(low, high, many = 4) {
  if (!(high > low)) return [low];
  const rough = (high - low) / many;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 2.5, 5, 10].find((one) => one * power >= rough) ?? 10);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) {
    found.push(Math.abs(value) < step * 1e-9 ? 0 : Number(value.toPrecision(12)));
  }
  return found;
}

/** Whole numbers only. */
export const whole_ticks = (low, high, many = 5) =>
  [...new Set(ticks(low, high, many).map(Math.round))].filter((value) => value >= low && value <= high);

/** [low, high] with some air; at least `least` apart. */
export function range(values, { floor = null, least = 1e-9 } = {}) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value === null || !Number.isFinite(value)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return null;
  if (floor !== null) low = Math.min(low, floor);
  if (high - low < least) {
    const middle = Math.max(Math.abs(high) * 0.05, least);
    return floor !== null && low >= floor ? [low, high + middle] : [low - middle, high + middle];
  }
  const air = (high - low) * 0.06;
  return [floor !== null && low >= floor ? low : low - air, high + air];
}

/** The mean of the last `width` known values at each place; null where none is known. */
export function smoothed(values, width) {
  const found = [];
  let sum = 0;
  let known = 0;
  for (let i = 0; i < values.length; i += 1) {
    if (values[i] !== null) (sum += values[i]), (known += 1);
    const left = i - width;
    if (left >= 0 && values[left] !== null) (sum -= values[left]), (known -= 1);
    found.push(known && values[i] !== null ? sum / known : null);
  }
  return found;
}

/** How wide `smoothed` should look: a twentieth of the run. */
export const smooth_width = (many) => Math.max(1, Math.round(many / 20));

/** At most `most` points [x, y]: means of neighbours; null breaks the line. */
export function thinned(steps, values, most) {
  const group = Math.max(1, Math.ceil(steps.length / most));
  const points = [];
  for (let start = 0; start < steps.length; start += group) {
    let sum = 0;
    let known = 0;
    const end = Math.min(start + group, steps.length);
    for (let i = start; i < end; i += 1) if (values[i] !== null) (sum += values[i]), (known += 1);
    points.push(known ? [group === 1 ? steps[start] : (steps[start] + steps[end - 1]) / 2, sum / known] : null);
  }
  return points;
}

/** The place of the step nearest to `wanted` in ascending steps. */
export function nearest(steps, wanted) {
  let low = 0;
  let high = steps.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] < wanted) low = middle;
    else high = middle;
  }
  return wanted - steps[low] <= steps[high] - wanted ? low : high;
}
