// Replaces the page's content whenever the service sends a newer one.
const main = document.getElementById("live");
const connection = document.getElementById("connection");
const stream = new EventSource("/live");
stream.onopen = () => { connection.textContent = "live"; connection.className = "live"; };
stream.onerror = () => { connection.textContent = "not connected; trying again"; connection.className = "away"; };
stream.onmessage = (message) => {
  // Whoever goes from link to link with the keyboard stays where they are: on the same one of the same links.
  const held = main.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  const same = () => [...main.querySelectorAll("a[href]")].filter((a) => a.getAttribute("href") === held);
  const place = held === null ? -1 : same().indexOf(document.activeElement);
  main.innerHTML = JSON.parse(message.data);
  if (place >= 0) { const now = same(); (now[place] ?? now.at(-1))?.focus({ preventScroll: true }); }
};
