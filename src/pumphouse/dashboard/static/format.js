// Numbers and times as people read them. Unknown is a dash, never a zero.
export const DASH = "–";
const whole = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const one = new Intl.NumberFormat("en-GB", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const short = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });

export const known = (value) => value !== null && value !== undefined;
export const number = (value) => (known(value) ? whole.format(value) : DASH);
export const rate = (value) => (!known(value) ? DASH : value > 0 && value < 9.95 ? one.format(value) : whole.format(value));

export function seconds(value) {
  if (!known(value)) return DASH;
  if (value < 9.95) return `${one.format(value)} s`;
  if (value < 120) return `${whole.format(value)} s`;
  if (value < 7200) return `${whole.format(value / 60)} min`;
  return `${one.format(value / 3600)} h`;
}

export function bytes(value) {
  if (!known(value)) return DASH;
  if (value < 1024) return `${whole.format(value)} B`;
  if (value < 1024 ** 2) return `${one.format(value / 1024)} KiB`;
  if (value < 1024 ** 3) return `${one.format(value / 1024 ** 2)} MiB`;
  return `${one.format(value / 1024 ** 3)} GiB`;
}

// A time that a browser can show: others come only from sensors that are confused.
const shown = (ms) => known(ms) && Math.abs(ms) < 8.64e15;

export function time(ms) {
  if (!shown(ms)) return DASH;
  const moment = new Date(ms);
  return moment.toDateString() === new Date().toDateString() ? clock.format(moment) : day.format(moment);
}
export const hourMinute = (ms) => (shown(ms) ? short.format(new Date(ms)) : DASH);
export const ago = (ms, now) => (known(ms) ? `${seconds(Math.max(0, (now - ms) / 1000))} ago` : DASH);
export const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;
