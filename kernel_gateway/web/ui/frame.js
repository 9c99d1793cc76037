// Shows the HTML of one output. This document has an origin of its own (sandbox) and a policy under which no script
// but this one runs and nothing is loaded. What would lead elsewhere all the same is taken out before it is shown:
// a browser looks up names for <link> whatever the policy, and follows <meta http-equiv>.
"use strict";

const LEFT_OUT = "script, link, meta, base, iframe, frame, object, embed, form, portal, fencedframe";

addEventListener("message", (event) => {
  if (event.source !== parent || typeof event.data?.html !== "string") return;
  const shown = new DOMParser().parseFromString(event.data.html, "text/html");
  for (const element of shown.querySelectorAll(LEFT_OUT)) element.remove();
  for (const link of shown.querySelectorAll("*")) {
    for (const name of ["href", "xlink:href"]) {
      if (!(link.getAttribute(name) ?? "#").startsWith("#")) link.removeAttribute(name);
    }
    link.removeAttribute("ping");
  }
  document.body.replaceChildren(...shown.head.querySelectorAll("style"), ...shown.body.childNodes);
  const told = () => {
    const visible = document.body.innerText.trim() !== "" || document.body.querySelector("img, svg") !== null;
    parent.postMessage({ height: document.body.getBoundingClientRect().height, visible }, "*");
  };
  new ResizeObserver(told).observe(document.body);
  told();
});
