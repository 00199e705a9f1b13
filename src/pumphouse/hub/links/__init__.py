"""The hub's side of an attached link: producers, consumers, `$cbs` and `$management`."""
