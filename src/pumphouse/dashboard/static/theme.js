// Applies the chosen theme before the first paint; the default is the theme of the system.
try {
  const chosen = localStorage.getItem("pumphouse-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch {
  // The browser has no storage: use the theme of the system.
}
