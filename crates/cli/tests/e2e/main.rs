//! The real `asb` as its users meet it: real sandboxes, unchanged kubectl, kill -9. Needs root.
//!
//! | file | story |
//! |---|---|
//! | `manifest` | `kubectl apply` of the first manifest, through suspend, resume and a crash of the engine |
//! | `commands` | `asb run`, `exec`, `ps`, `logs`, `rm`, `down`; `kubectl attach` |
//! | `copy` | `asb cp`, with sandboxes that attack the receiver |
//! | `usage` | `kubectl top` and `asb top` |
//! | `volume` | `asb stop`, `start`; volumes measured, exported and imported |
//! | `debug` | `kubectl debug`: containers added to a Pod that runs |
//! | `disk` | sandboxes that fill the disk: limits, eviction, a machine that is low on it |
//! | `errors` | wrong input gets an error that names the field and the fix |
//! | `image` | images made, pulled by a Pod, run, listed and removed |
//! | `containers` | Pods of several containers: init containers, sidecars, restarts, their past |
//! | `older_kubectl` | apply, get, describe, logs, exec, cp, port-forward, wait, delete with kubectl 1.32 |
//! | `pod` | what a Pod is given: variables, volumes, groups |
//! | `first_command` | reported Ready, then the first command: claim, start, resume |
//! | `http` | one HTTP call runs a command in a named sandbox |
//! | `crash` | kill -9 under write load loses no acknowledged write |
//! | `storm` | kill -9 at random points of creates, execs and deletes loses nothing and leaves nothing |
//! | `many` | hundreds of sandboxes, one after the other and at once |
//! | `cluster` | the same manifest and the same controllers on a real kube-apiserver |
//! | `network` | what sandboxes reach and what not, by default and by NetworkPolicies |
//! | `shown` | rows, events and the Node as kubectl shows them |
//! | `scheduling` | Pods that wait for a place: cordon, drain, taints, labels, requests |
//! | `services` | addresses of Services, as `kubectl expose` makes them |
//! | `together` | what containers of a Pod share, and when a Pod begins anew |
//! | `probes` | probes of every kind, and hooks |
//! | `pods` | every Pod of a list goes the way it goes with a kubelet |
//! | `pool` | a template and a pool of Sandboxes that are ready before anybody asks |
//! | `portforward` | `kubectl port-forward` to a program in a sandbox |
//! | `ready` | reported Ready, then exec, names, policies, a new sandbox of an old name |
//! | `protocols` | WebSockets, events, HTTP/2 and gRPC through the router |
//! | `proxy` | `pods/proxy` and `services/proxy`: kubectl, `kubectl proxy`, the Python client |
//! | `link` | `asb link` in a real browser, and attacks by the page of another sandbox |
//! | `load` | thousands of WebSockets, a gigabyte, clients and sandboxes that stall, kill -9 under requests |
//! | `tunnel` | `kubectl port-forward svc/sandbox-router-svc`, as published clients do it |
//! | `streams` | exec and attach in terminals and pipes, over WebSockets and SPDY |
//! | `runtime` | Pods under runc, crun and gVisor; what is not there; `asb doctor` |
//! | `privileged` | containers that the operator lets do more |
//! | `clients` | published clients, unchanged, in every mode that they have |
//! | `clientgo` | an unchanged client-go: protobuf, informers, exec, leader election |
//! | `helm` | unchanged Helm: charts installed, tested, upgraded, rolled back, removed |
//! | `python` | the Python SDK against a real engine |
//! | `machine` | what needs a machine of its own: sizes of volumes that hold, a reset |
//! | `rootless` | the same by an ordinary user of the machine |

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod backup;
mod claims;
mod clientgo;
mod clients;
mod cluster;
mod commands;
mod containers;
mod copy;
mod crash;
mod debug;
mod disk;
mod engine;
mod errors;
mod first_command;
mod helm;
mod http;
mod image;
mod link;
mod load;
mod machine;
mod manifest;
mod many;
mod network;
mod older_kubectl;
mod pod;
mod pods;
mod pool;
mod portforward;
mod privileged;
mod probes;
mod protocols;
mod proxy;
mod python;
mod ready;
mod rootless;
mod router;
mod runtime;
mod sandboxes;
mod scheduling;
mod services;
mod shown;
mod storm;
mod streams;
mod terminal;
mod together;
mod tunnel;
mod usage;
mod volume;
