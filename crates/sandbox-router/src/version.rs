//! Which build this is. A release sets commit and date; other builds have none.

use std::fmt;

pub struct Version {
    pub git_version: &'static str,
    pub git_commit: &'static str,
    pub build_date: &'static str,
    pub compiler: &'static str,
    pub platform: String,
}

impl Version {
    pub fn here() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Self {
            git_version: concat!("v", env!("CARGO_PKG_VERSION")),
            git_commit: option_env!("ASB_GIT_COMMIT").unwrap_or("unknown"),
            build_date: option_env!("ASB_BUILD_DATE").unwrap_or("unknown"),
            compiler: concat!("rustc ", env!("CARGO_PKG_RUST_VERSION")),
            platform: format!("{}/{architecture}", std::env::consts::OS),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "sandbox-router")?;
        writeln!(f, "  version:   {}", self.git_version)?;
        writeln!(f, "  commit:    {}", self.git_commit)?;
        writeln!(f, "  built:     {}", self.build_date)?;
        writeln!(f, "  compiler:  {}", self.compiler)?;
        write!(f, "  platform:  {}", self.platform)
    }
}
