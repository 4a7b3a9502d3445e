//! One file per command.

pub mod backup;
mod controller;
mod cp;
mod doctor;
mod down;
mod exec;
pub mod image;
mod kubeconfig;
mod link;
mod logs;
mod migrate;
mod ps;
mod rm;
mod router;
mod run;
mod start;
mod stop;
mod top;
mod up;
pub mod volume;

use std::process::ExitCode;

use crate::args::Command;
use crate::data_dir::DataDir;

pub async fn run(data_dir: &DataDir, command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Up(up) => up::run(data_dir, up).await,
        Command::Down => down::run(data_dir).await,
        Command::Run(run) => run::run(data_dir, run).await,
        Command::Exec(exec) => exec::run(data_dir, exec).await,
        Command::Ps(ps) => ps::run(data_dir, ps).await,
        Command::Logs(logs) => logs::run(data_dir, logs).await,
        Command::Cp(cp) => cp::run(data_dir, cp).await,
        Command::Top(top) => top::run(data_dir, top).await,
        Command::Link(link) => link::run(data_dir, link).await,
        Command::Stop(stop) => stop::run(data_dir, stop).await,
        Command::Start(start) => start::run(data_dir, start).await,
        Command::Volume(volume) => volume::run(data_dir, volume).await,
        Command::Rm(rm) => rm::run(data_dir, rm).await,
        Command::Backup(backup) => backup::create(data_dir, backup).await,
        Command::Restore(restore) => backup::restore(data_dir, &restore),
        Command::Doctor(doctor) => doctor::run(data_dir, &doctor).await,
        Command::Image(image) => image::run(data_dir, image).await,
        Command::Kubeconfig(kubeconfig) => kubeconfig::run(data_dir, &kubeconfig).await,
        Command::Controller(options) => Ok(controller::run(*options).await),
        Command::Router(router) => Ok(router::run(router).await),
        Command::Migrate(migrate) => migrate::run(migrate).await,
    }
}
