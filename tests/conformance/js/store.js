// A strict checkpoint store in memory: a claim without the current etag is refused.

export class MemoryStore {
  #ownerships = new Map();
  #checkpoints = new Map();
  #etags = 0;
  claims = 0;

  async listOwnership(namespace, hub, group) {
    return [...this.#ownerships.values()]
      .filter((row) =>
        place(row).startsWith(place({ ...names(namespace, hub, group), partitionId: "" })),
      )
      .map((row) => ({ ...row }));
  }

  async claimOwnership(requested) {
    const granted = [];
    for (const row of requested) {
      const present = this.#ownerships.get(place(row));
      if (present?.etag !== row.etag) continue;
      this.claims += 1;
      this.#etags += 1;
      const fresh = { ...row, etag: `"${this.#etags}"`, lastModifiedTimeInMs: Date.now() };
      this.#ownerships.set(place(row), fresh);
      granted.push({ ...fresh });
    }
    return granted;
  }

  async updateCheckpoint(checkpoint) {
    this.#checkpoints.set(place(checkpoint), { ...checkpoint });
  }

  async listCheckpoints(namespace, hub, group) {
    return [...this.#checkpoints.values()]
      .filter((row) =>
        place(row).startsWith(place({ ...names(namespace, hub, group), partitionId: "" })),
      )
      .map((row) => ({ ...row }));
  }

  // The owners as a picture: one letter per partition.
  picture(letters) {
    return [...this.#ownerships.values()]
      .sort((a, b) => a.partitionId - b.partitionId)
      .map((row) => letters[row.ownerId] ?? ".")
      .join("");
  }
}

const names = (fullyQualifiedNamespace, eventHubName, consumerGroup) => ({
  fullyQualifiedNamespace,
  eventHubName,
  consumerGroup,
});

const place = (row) =>
  `${row.fullyQualifiedNamespace}/${row.eventHubName}/${row.consumerGroup}/${row.partitionId}`;
