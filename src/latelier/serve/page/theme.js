// Before anything is drawn: the colours that were chosen in this browser, else those of the system.

const showColours = (chosen) => {
  document.documentElement.dataset.theme = chosen;
};

showColours(localStorage.getItem("theme") ?? "");
addEventListener("DOMContentLoaded", () => {
  const choice = document.getElementById("theme");
  if (!choice) return;
  choice.value = document.documentElement.dataset.theme;
  choice.addEventListener("change", () => {
    localStorage.setItem("theme", choice.value);
    showColours(choice.value);
  });
});
