// A stream of server-sent events that reports its state: connecting, live or lost. The browser
// re-opens a broken stream; a refused one is re-opened here, so that a restarted server is found.
const RETRY_MS = 2000;

export class Stream {
  constructor(path, handlers, onState) {
    this.path = path;
    this.handlers = handlers;
    this.onState = onState;
    this.closed = false;
    this.open();
  }

  open() {
    if (this.closed) return;
    this.source = new EventSource(this.path);
    this.onState("connecting");
    for (const [name, handle] of Object.entries(this.handlers)) {
      this.source.addEventListener(name, (event) => {
        this.onState("live");
        handle(JSON.parse(event.data));
      });
    }
    this.source.onerror = () => {
      if (this.closed) return;
      this.onState("lost");
      if (this.source.readyState === EventSource.CLOSED) {
        this.timer = setTimeout(() => this.open(), RETRY_MS);
      }
    };
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    this.source.close();
  }
}
