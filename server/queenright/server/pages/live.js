// Replaces the page's content whenever the service sends a newer one.
const main = document.getElementById("live");
const connection = document.getElementById("connection");
const stream = new EventSource("/live");
stream.onopen = () => { connection.textContent = "live"; connection.className = "live"; };
stream.onerror = () => { connection.textContent = "not connected; trying again"; connection.className = "away"; };
stream.onmessage = (message) => { main.innerHTML = JSON.parse(message.data); };
