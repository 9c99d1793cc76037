// Questions that must be answered first.
import { h, newId } from "./dom.js";

/** Ask before something that cannot be undone. The focus is on the way out, and goes back to where it was. */
export function confirmed(title, action, ...body) {
  const [titleId, bodyId] = [newId(), newId()];
  const dialog = h(
    "dialog",
    { "aria-labelledby": titleId, "aria-describedby": bodyId, role: "alertdialog" },
    h("h2", { id: titleId }, title),
    h("div", { id: bodyId }, ...body),
    h(
      "div",
      { class: "actions" },
      h("button", { type: "button", autofocus: true, onclick: () => dialog.close() }, "Cancel"),
      h("button", { type: "button", class: "danger", onclick: () => dialog.close("yes") }, action),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
  });
}

/** Close what is asked, as when nobody is signed in any more. */
export function closeAll() {
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
}
