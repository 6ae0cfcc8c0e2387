/** Signs in with a token, typed or in the address after `#token=`, and opens the page that was asked for. */

const form = document.getElementById("form");
const field = document.getElementById("token");
const problem = document.getElementById("problem");

const given = location.hash.startsWith("#token=") ? decodeURIComponent(location.hash.slice("#token=".length)) : "";
const wanted = given ? "" : location.hash;
// The token is not to stay in the address, nor in the browser's history.
if (given) history.replaceState(null, "", location.pathname);

async function signIn(token) {
  problem.textContent = "";
  try {
    const answer = await fetch("/signin", { method: "POST", body: new URLSearchParams({ token }) });
    if (answer.ok) {
      location.replace(`/${wanted}`);
      return;
    }
    const { error } = await answer.json();
    problem.textContent = `${error.message}${error.remedy ? `: ${error.remedy}` : ""}.`;
  } catch {
    problem.textContent = "The server does not answer.";
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  signIn(field.value.trim());
});

if (given) {
  signIn(given);
} else {
  // A link from another site comes without the cookie, which this request has.
  const session = await fetch("/api/session", { cache: "no-store" }).catch(() => null);
  if (session?.ok) location.replace(`/${wanted}`);
  else field.focus();
}
