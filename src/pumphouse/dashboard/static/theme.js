// The address of the first visit has the token of the page, which is a cookie from now on. It is
// removed, so that it stays out of the history and of copied addresses.
{
  const address = new URL(location.href);
  if (address.searchParams.has("token")) {
    address.searchParams.delete("token");
    history.replaceState(null, "", address);
  }
}

// Applies the chosen theme before the first paint; the default is the theme of the system.
try {
  const chosen = localStorage.getItem("pumphouse-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch {
  // The browser has no storage: use the theme of the system.
}
