//! What tests of several crates share. For tests only.
//!
//! A controller test is one story, told twice: on the embedded API server, which binds Pods
//! itself, and on a real kube-apiserver with a real scheduler.
//!
//! ```ignore
//! asb_testing::both_servers! { sandbox_becomes_ready }
//!
//! async fn sandbox_becomes_ready(world: World) {
//!     world.apply(sandbox("box", json!({}))).await;
//!     world.eventually::<Sandbox>("box", is_ready).await;
//! }
//! ```

pub mod clients;
mod commands;
mod faults;
mod image;
pub mod kubelet;
mod kubernetes;
mod leak;
pub mod node;
pub mod pods;
mod registry;
mod rights;
mod root;
mod tool;
mod world;
mod writes;

pub use commands::Commands;
pub use faults::Faults;
pub use image::{Built, ImageBuilder, TarBuilder, digest};
pub use kubernetes::Kubernetes;
pub use leak::assert_nothing_left;
pub use registry::{Access, Faulty, Registry};
pub use root::root;
pub use tool::tool;
pub use world::{Kind, World};
pub use writes::Writes;

/// Makes two tests of every story: `embedded::<story>` and `kubernetes::<story>`.
#[macro_export]
macro_rules! both_servers {
    ($($story:ident),* $(,)?) => {
        mod embedded {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $story() {
                super::$story($crate::World::embedded().await).await;
            })*
        }
        mod kubernetes {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $story() {
                super::$story($crate::World::kubernetes().await).await;
            })*
        }
    };
}
