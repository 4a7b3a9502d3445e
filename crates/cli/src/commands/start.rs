//! `asb start`: a sandbox that was stopped runs again, with the volumes it had.

use std::process::ExitCode;

use super::run::ready;
use super::stop::set_mode;
use crate::args::Start;
use crate::connect;
use crate::data_dir::DataDir;

pub async fn run(data_dir: &DataDir, start: Start) -> anyhow::Result<ExitCode> {
    let client = connect::running_client(data_dir).await?;
    for name in &start.names {
        set_mode(&client, &start.target.namespace, name, "Running").await?;
        ready(&client, &start.target.namespace, name).await?;
        println!("{name}");
    }
    Ok(ExitCode::SUCCESS)
}
