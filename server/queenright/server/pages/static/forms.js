// A second press does not do it twice.
for (const form of document.forms) {
  form.addEventListener("submit", (event) => {
    if (form.dataset.sent) { event.preventDefault(); return; }
    form.dataset.sent = "yes";
    form.setAttribute("aria-busy", "true");
  });
}
// Back from the page after, it may be sent again.
addEventListener("pageshow", () => { for (const form of document.forms) { delete form.dataset.sent; form.removeAttribute("aria-busy"); } });
