// Export of the conversation to a file and import from one.

import { Conversation } from "./conversation.js";
import { byId, el } from "./dom.js";

const FILE_MAX = 16 << 20;

/** Connects both buttons. `imported` gets a conversation, `failed` a reason. */
export function connectTransfer({ conversation, imported, failed, isBusy }) {
  byId("export").addEventListener("click", () => {
    const blob = new Blob([JSON.stringify(conversation(), null, 1)], { type: "application/json" });
    const address = URL.createObjectURL(blob);
    const day = new Date().toISOString().slice(0, 10);
    el("a", { href: address, download: `calla-${day}.json` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  });
  const file = byId("import-file");
  byId("import").addEventListener("click", () => file.click());
  file.addEventListener("change", async () => {
    const [chosen] = file.files;
    file.value = "";
    if (chosen === undefined) return;
    try {
      if (isBusy()) throw new Error("a reply is running");
      if (chosen.size > FILE_MAX) throw new Error(`it is longer than ${FILE_MAX >> 20} MiB`);
      imported(Conversation.fromJSON(JSON.parse(await chosen.text())));
    } catch (error) {
      failed(error.message);
    }
  });
}
