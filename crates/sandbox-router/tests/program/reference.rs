//! The table of flags in docs/router.md, written from the flags themselves.
//!
//! The test compares; `ASB_WRITE_TABLES=1` writes.

use asb_sandbox_router::options::Flags;
use clap::Arg;

const BEGIN: &str = "<!-- flags: begin; written by `ASB_WRITE_TABLES=1 cargo test -p asb-sandbox-router --test program reference::` -->";
const END: &str = "<!-- flags: end -->";

fn table() -> String {
    let command = Flags::go_command();
    let mut lines = vec!["| flag | default | meaning |".to_owned(), "|---|---|---|".to_owned()];
    let mut heading = None;
    for flag in command.get_arguments().filter(|flag| flag.get_long().is_some() && !flag.is_hide_set()) {
        if flag.get_id() == "help" {
            continue;
        }
        if flag.get_help_heading() != heading {
            heading = flag.get_help_heading();
            lines.push(format!("| **{}** | | |", heading.unwrap_or_default()));
        }
        lines.push(row(flag));
    }
    lines.join("\n")
}

fn row(flag: &Arg) -> String {
    let help = flag.get_long_help().or(flag.get_help()).map(ToString::to_string).unwrap_or_default();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    let default = flag.get_default_values().iter().filter_map(|value| value.to_str()).collect::<String>();
    let default = if default.is_empty() { "–".to_owned() } else { format!("`{default}`") };
    format!("| `--{}` | {default} | {help} |", flag.get_long().unwrap_or_default())
}

#[test]
fn every_flag_is_in_the_documentation_with_its_default() {
    let path = asb_testing::root().join("docs/router.md");
    let document = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = document.split_once(BEGIN).expect("docs/router.md says where the table begins");
    let (_, after) = rest.split_once(END).expect("docs/router.md says where the table ends");
    let updated = format!("{before}{BEGIN}\n{}\n{END}{after}", table());
    if std::env::var_os("ASB_WRITE_TABLES").is_some_and(|it| it == "1") {
        std::fs::write(&path, updated).unwrap();
    } else {
        assert!(updated == document, "docs/router.md is stale; run this test with ASB_WRITE_TABLES=1");
    }
}
