// Light, dark, or as the system has it.

const THEMES = ["auto", "light", "dark"];

function remembered() {
  try {
    return localStorage.getItem("simcoll-theme");
  } catch {
    return null; // A file that may keep nothing has the system's theme.
  }
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = `Theme: ${theme}`;
  try {
    localStorage.setItem("simcoll-theme", theme);
  } catch {
    // It is chosen for this visit alone.
  }
  document.dispatchEvent(new Event("themechange"));
}

function startTheme() {
  const button = document.getElementById("theme");
  button.hidden = false;
  setTheme(THEMES.includes(remembered()) ? remembered() : "auto");
  button.addEventListener("click", () => {
    const now = THEMES.indexOf(document.documentElement.dataset.theme);
    setTheme(THEMES[(now + 1) % THEMES.length]);
  });
}
