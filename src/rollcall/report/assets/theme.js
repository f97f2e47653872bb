// Light or dark, as the system says or the reader chose; bokeh's figures get the colours of the page.
const theme = {
  apply(dark) {
    document.documentElement.classList.toggle("dark", dark);
    const style = getComputedStyle(document.documentElement);
    const [ink, soft, line] = ["--ink", "--soft", "--line"].map((name) => style.getPropertyValue(name).trim());
    for (const doc of window.Bokeh?.documents ?? []) {
      for (const model of doc._all_models?.values?.() ?? []) {
        const wants = {
          major_label_text_color: soft, axis_label_text_color: soft, label_text_color: ink, title_text_color: soft,
          axis_line_color: line, major_tick_line_color: line, minor_tick_line_color: null, grid_line_color: line,
        };
        for (const [name, value] of Object.entries(wants)) if (name in model.properties) model[name] = value;
        if (model.type === "Text") model.text_color = { value: ink };
      }
    }
  },
  begin() {
    const system = matchMedia("(prefers-color-scheme: dark)");
    let dark = system.matches;
    theme.apply(dark);
    system.addEventListener("change", () => theme.apply((dark = system.matches)));
    document.getElementById("theme").addEventListener("click", () => theme.apply((dark = !dark)));
    addEventListener("beforeprint", () => theme.apply(false));
    addEventListener("afterprint", () => theme.apply(dark));
  },
};
