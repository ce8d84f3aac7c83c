// Chooses light or dark before anything is painted: what was chosen here before, else what the system prefers.
(() => {
  const NAME = "octavo.theme";
  const system = matchMedia("(prefers-color-scheme: dark)");
  const stored = () => {
    try {
      return localStorage.getItem(NAME);
    } catch {
      return null; // a browser that keeps nothing
    }
  };
  const current = () => stored() ?? (system.matches ? "dark" : "light");
  const apply = () => {
    const theme = current();
    document.documentElement.dataset.theme = theme;
    const button = document.getElementById("theme");
    button?.setAttribute("aria-label", `Switch to the ${theme === "dark" ? "light" : "dark"} theme`);
    document.dispatchEvent(new CustomEvent("octavo:theme"));
  };
  system.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", () => {
    apply();
    document.getElementById("theme").addEventListener("click", () => {
      try {
        localStorage.setItem(NAME, current() === "dark" ? "light" : "dark");
      } catch {
        return;
      }
      apply();
    });
  });
  apply();
})();
