//! How many inputs the parsers' property tests try: few by default, `ASB_FUZZ_CASES` many when searching.

use proptest::test_runner::Config;

pub fn config() -> Config {
    let cases = std::env::var("ASB_FUZZ_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(64);
    Config { cases, max_global_rejects: 1024 + cases, failure_persistence: None, ..Config::default() }
}
