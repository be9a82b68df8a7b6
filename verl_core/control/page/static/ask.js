// A question that needs a reason, in a dialog: the browser keeps the focus in it and gives it back.

import { at, replace, setText } from "./dom.js";

/**
 * Ask, and act on a yes. The dialog stays open while `act` is refused, and says what `refused` makes
 * of the error. Gives what `act` gave; null where it was cancelled.
 */
export function ask({ title, body, yes, act, refused }) {
  const dialog = at("ask");
  setText(at("ask-title"), title);
  replace(at("ask-body"), body);
  setText(at("ask-yes"), yes);
  setText(at("ask-error"), "");
  at("ask-reason").value = "";
  return new Promise((resolve) => {
    let result = null;
    const done = new AbortController();
    const { signal } = done;
    at("ask-form").addEventListener("submit", async (event) => {
      event.preventDefault();
      at("ask-yes").disabled = true;
      try {
        result = await act(at("ask-reason").value.trim());
        dialog.close();
      } catch (error) {
        setText(at("ask-error"), await refused(error));
      } finally {
        at("ask-yes").disabled = false;
      }
    }, { signal });
    at("ask-no").addEventListener("click", () => dialog.close(), { signal });
    dialog.addEventListener("close", () => {
      done.abort();
      resolve(result);
    }, { signal });
    dialog.showModal();
    at("ask-reason").focus();
  });
}
