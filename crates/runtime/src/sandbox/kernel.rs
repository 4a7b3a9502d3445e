//! Sandboxes that share a kernel: the one that has it, and those that have joined it.

use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;

use super::Sandbox;
use crate::{Kernel, Stats};

/// Those who have lost their kernel notice at once.
const PATIENCE: Duration = Duration::from_secs(5);

impl Sandbox {
    /// The sandbox whose kernel this one has joined, as long as it is there.
    pub(super) fn kernel(&self) -> Option<Sandbox> {
        match &self.spec().kernel {
            Kernel::Of(other) => self.inner.shared.sandbox(other),
            Kernel::Own | Kernel::Shared => None,
        }
    }

    /// Those that have joined the kernel of this one.
    fn members(&self) -> Vec<Sandbox> {
        match self.spec().kernel {
            Kernel::Shared => {
                self.inner.shared.sandboxes(|it| it.spec().kernel == Kernel::Of(self.id().clone()))
            }
            Kernel::Own | Kernel::Of(_) => Vec::new(),
        }
    }

    /// What it uses itself, and by the head what its kernel does.
    pub(super) fn with_part_of_kernel(&self, own: Stats) -> Stats {
        let Some(kernel) = self.kernel() else { return own };
        let lives = |sandbox: &Sandbox| sandbox.wait().now_or_never().is_none();
        let heads = kernel.members().into_iter().filter(lives).count();
        own.with_part_of(self.inner.shared.cgroups.usage(kernel.slot()), heads as u64)
    }

    /// Finds out how those ended that have ended with the kernel, before what tells of its want of memory is gone.
    pub(super) async fn settle_members(&self) {
        let ends = self.members().into_iter().map(|member| async move { drop(member.wait().await) });
        let _ = tokio::time::timeout(PATIENCE, join_all(ends)).await;
    }
}
