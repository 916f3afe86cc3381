// The panel where a checklist writes what came out, step by step, and its conclusion.

const WORDS = { ok: "holds", bad: "does not hold", skipped: "nothing to check", cannot: "not checked" };

const panel = document.getElementById("check");
const summary = document.getElementById("check-summary");
const list = document.getElementById("check-steps");

export function text(tag, content, name) {
  const element = document.createElement(tag);
  element.textContent = content;
  if (name) element.className = name;
  return element;
}

// What `check` calls with each step's number, state and lines.
export function reporter(steps) {
  return (number, state, lines) => {
    const item = document.createElement("li");
    item.dataset.state = state;
    const head = text("p", "", "step");
    head.append(text("strong", steps[number].name), " ", text("span", WORDS[state], "state"));
    item.append(head, text("pre", lines.join("\n")));
    list.append(item);
  };
}

export function begin() {
  document.getElementById("unchecked").hidden = true;
  panel.hidden = false;
  list.replaceChildren();
  conclude("running", "Checking …");
}

export function conclude(state, message) {
  panel.dataset.state = state;
  summary.textContent = message;
}
