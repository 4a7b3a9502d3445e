//! Drivers are found by using them.

use asb_runtime::driver::{ALL, Cache, Name};
use asb_runtime::{Native, leak};

use crate::common::{World, eventually, log};

#[tokio::test]
async fn every_driver_works_here_and_leaves_nothing() {
    let directory = tempfile::Builder::new().prefix("asb-test-").tempdir().expect("temporary directory");
    let cache = Cache::new(directory.path());
    for name in ALL {
        let probe = cache.try_again(name).await;
        assert!(probe.works(), "{name} does not work on this machine (tools/test installs it): {probe:#?}");
        let can = probe.abilities;
        assert!(
            can.exec && can.terminal && can.freeze && can.user_namespace && can.shared_network,
            "{probe:#?}"
        );
        assert_eq!(can.kernel_of_the_machine, name != Name::Gvisor);
        assert_eq!(cache.known(name), Some(probe), "it is remembered");
    }
    assert_eq!(std::fs::read_dir(directory.path().join("probe")).expect("listed").count(), 0);
}

#[tokio::test]
async fn sandbox_is_found_and_deleted_without_its_runtime() {
    let world = World::on(Name::Crun);
    let sandbox = world.start(&["sh", "-c", "echo here; exec sleep 1000"]).await;
    eventually(|| log(&sandbox).contains("here")).await;
    let state = world.directory.path().join("state");
    // As if it had been uninstalled: nobody can run it any more.
    let file = state.join("sandbox").join(sandbox.id().as_str()).join("sandbox.json");
    let stored = std::fs::read_to_string(&file).expect("there");
    assert!(stored.contains("/crun\""), "the program is named: {stored}");
    std::fs::write(&file, stored.replace("/crun\"", "/gone\"")).expect("written");
    let next = Native::open(&state).expect("opens");
    let found = next.list().await.expect("lists");
    assert_eq!((found.len(), found[0].spec().driver), (1, Name::Crun));
    assert_eq!(log(&found[0]), "stdout F here\n");
    found[0].delete().await.expect("deletes");
    assert_eq!(leak::check(&state), Vec::<String>::new());
    world.finish().await;
}
