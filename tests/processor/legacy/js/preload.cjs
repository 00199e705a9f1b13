// Loaded before the unmodified legacy host.
//
// 1. The host connects to port 5671 only; the hub of a test has another port (HUB_PORT).
// 2. Azure lists a blob without metadata with an empty object, Azurite without the property. The
//    host expects the object.

const tls = require("tls");
const { BlobService } = require("azure-storage");

const connect = tls.connect;
tls.connect = function (...args) {
  const port = Number(process.env.HUB_PORT);
  const moved = args.map((arg) => {
    if (Number(arg) === 5671) return port;
    return arg && Number(arg.port) === 5671 ? { ...arg, port } : arg;
  });
  return connect.apply(this, moved);
};

const list = BlobService.prototype.listBlobsSegmented;
BlobService.prototype.listBlobsSegmented = function (container, token, options, callback) {
  return list.call(this, container, token, options, (error, result, response) => {
    for (const blob of (result && result.entries) || []) blob.metadata = blob.metadata || {};
    callback(error, result, response);
  });
};
