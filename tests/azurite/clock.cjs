// Loaded before Azurite: a clock that tests advance by lines on stdin.
//
//   stdin:  advance 100      ->  stdout: advanced 100
//
// All times of Azurite (Date, Last-Modified, the ends of leases and signatures)
// come from Date. When stdin ends, the parent process has ended, and this one exits.
'use strict';

const RealDate = Date;
let aheadMs = 0;

globalThis.Date = class Date extends RealDate {
  constructor(...given) {
    if (given.length === 0) super(RealDate.now() + aheadMs);
    else super(...given);
  }

  static now() {
    return RealDate.now() + aheadMs;
  }
};

process.stdin.setEncoding('utf8');
let rest = '';
process.stdin.on('data', (text) => {
  const lines = (rest + text).split('\n');
  rest = lines.pop();
  for (const line of lines) {
    const seconds = Number(line.replace('advance ', ''));
    aheadMs += seconds * 1000;
    process.stdout.write(`advanced ${seconds}\n`);
  }
});
process.stdin.on('end', () => process.exit(0));
process.stdin.unref();
