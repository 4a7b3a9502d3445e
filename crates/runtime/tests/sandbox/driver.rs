//! Drivers are found by using them.

use asb_runtime::driver::{ALL, Cache, Name};

#[tokio::test]
async fn every_driver_works_here_and_leaves_nothing() {
    let directory = tempfile::Builder::new().prefix("asb-test-").tempdir().expect("temporary directory");
    let cache = Cache::new(directory.path());
    for name in ALL {
        let probe = cache.try_again(name).await;
        assert!(probe.works(), "{name} does not work on this machine (tools/test installs it): {probe:#?}");
        let can = probe.abilities;
        assert!(can.exec && can.terminal && can.freeze && can.user_namespace, "{probe:#?}");
        assert_eq!(can.kernel_of_the_machine, name != Name::Gvisor);
        assert_eq!(cache.known(name), Some(probe), "it is remembered");
    }
    assert_eq!(std::fs::read_dir(directory.path().join("probe")).expect("listed").count(), 0);
}
