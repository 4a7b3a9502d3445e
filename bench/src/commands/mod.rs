//! One file for each thing that is measured.

mod claims;
mod creates;
mod density;
mod engine;
mod first_command;
mod proxy;
mod start;

use crate::args::{Args, Command};
use crate::{stopwatch, target};

pub fn run(args: Args) -> anyhow::Result<()> {
    if matches!(args.command, Command::Stopwatch) {
        return stopwatch::serve();
    }
    // As many workers as `asb` has, so that our server in this process is the one that ships.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        match &args.command {
            Command::Start { rounds } => start::run(&args, *rounds).await,
            Command::Engine { rounds } => engine::run(&args, *rounds).await,
            Command::Creates { seconds, repeat, rounds, without_kubernetes } => {
                let plan = creates::Plan { seconds: *seconds, repeat: *repeat, rounds: *rounds };
                creates::run(&args, plan, !without_kubernetes).await
            }
            Command::Claims { burst, rates, seconds, fleets, rounds, without_kubernetes } => {
                let plan = claims::Plan {
                    burst: *burst,
                    rates: rates.clone(),
                    seconds: *seconds,
                    fleets: fleets.clone(),
                    rounds: *rounds,
                };
                claims::run(&args, plan, !without_kubernetes).await
            }
            Command::Density { sandboxes } => density::run(&args, *sandboxes).await,
            Command::First { rounds, seconds } => first_command::run(&args, *rounds, *seconds).await,
            Command::Proxy { seconds, rounds, connections } => {
                let plan =
                    proxy::Plan { seconds: *seconds, rounds: *rounds, connections: connections.clone() };
                proxy::run(&args, plan).await
            }
            Command::Route { backend } => proxy::route(*backend).await,
            Command::Serve { data_dir } => target::serve(data_dir).await,
            Command::Stopwatch => stopwatch::serve(),
        }
    })
}
