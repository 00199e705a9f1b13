// Numbers and times as text. An unknown value is a dash, never a zero.
export const DASH = "–";

const format = (options) => new Intl.NumberFormat("en-GB", options);
const formatTime = (options) => new Intl.DateTimeFormat("en-GB", options);
const HOUR_MINUTE = { hour: "2-digit", minute: "2-digit" };
const CLOCK = { ...HOUR_MINUTE, second: "2-digit" };

const whole = format({ maximumFractionDigits: 0 });
const decimal = format({ minimumFractionDigits: 1, maximumFractionDigits: 1 });
const hourMinuteFormat = formatTime(HOUR_MINUTE);
const clockFormat = formatTime(CLOCK);
const dayFormat = formatTime({ day: "numeric", month: "short", ...CLOCK });

export const known = (value) => value !== null && value !== undefined;
export const number = (value) => (known(value) ? whole.format(value) : DASH);

export function rate(value) {
  if (!known(value)) return DASH;
  return value > 0 && value < 9.95 ? decimal.format(value) : whole.format(value);
}

export function seconds(value) {
  if (!known(value)) return DASH;
  if (value < 9.95) return `${decimal.format(value)} s`;
  if (value < 120) return `${whole.format(value)} s`;
  if (value < 7200) return `${whole.format(value / 60)} min`;
  return `${decimal.format(value / 3600)} h`;
}

export function bytes(value) {
  if (!known(value)) return DASH;
  if (value < 1024) return `${whole.format(value)} B`;
  if (value < 1024 ** 2) return `${decimal.format(value / 1024)} KiB`;
  if (value < 1024 ** 3) return `${decimal.format(value / 1024 ** 2)} MiB`;
  return `${decimal.format(value / 1024 ** 3)} GiB`;
}

// Whether a browser can represent the time. A faulty sensor may send any number.
const isTime = (ms) => known(ms) && Math.abs(ms) < 8.64e15;

export function time(ms) {
  if (!isTime(ms)) return DASH;
  const date = new Date(ms);
  const today = date.toDateString() === new Date().toDateString();
  return (today ? clockFormat : dayFormat).format(date);
}

// Steps of an alert are seconds or less apart.
export function clockWithMs(ms) {
  if (!isTime(ms)) return DASH;
  return `${time(ms)}.${String(Math.floor(ms) % 1000).padStart(3, "0")}`;
}

export const hourMinute = (ms) => (isTime(ms) ? hourMinuteFormat.format(new Date(ms)) : DASH);
export const ago = (ms, now) =>
  known(ms) ? `${seconds(Math.max(0, (now - ms) / 1000))} ago` : DASH;
export const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;
