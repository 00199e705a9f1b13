// Required before Azurite: a clock that tests can move, by lines on stdin.
//
//   stdin:  advance 100      ->  stdout: advanced 100
//
// Everything that Azurite tells of time (Date, Last-Modified, the ends of leases and signatures)
// comes from Date. When stdin ends, whoever started us is gone, and so are we.
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
