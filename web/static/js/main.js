// Every page works without scripts; these make it live. Each looks for its own data-* hooks.

import * as cancel from "./cancel.js";
import * as compose from "./compose.js";
import * as gallery from "./gallery.js";
import * as live from "./live.js";
import * as times from "./times.js";

document.documentElement.classList.add("scripted");
for (const feature of [live, compose, cancel, gallery, times]) feature.start();
