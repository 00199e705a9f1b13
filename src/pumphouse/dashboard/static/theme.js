// Before anything is drawn: the theme that was chosen here, or the system's.
try {
  const chosen = localStorage.getItem("pumphouse-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch { /* a browser that keeps nothing follows the system */ }
