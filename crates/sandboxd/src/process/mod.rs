//! Processes that callers start: spawned here, each as the leader of a group of its own, whatever API asked for them.

mod capture;
mod child;
mod held;
mod port;
mod reaper;
mod ring;
mod spawn;
mod table;

pub use capture::{Captured, Limits, run};
pub use child::{Child, Exit};
pub use held::Held;
pub use port::{Port, register};
pub use reaper::{adopt_orphans, watch as watch_children};
pub use ring::{Next, Ring, Source};
pub use spawn::{Cwd, Failure, Input, Spawned, Wanted};
pub use table::{Entry, InputError, MAX_PROCESSES, Refused, Slot, Table};
