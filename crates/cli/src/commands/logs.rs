//! `asb logs`: what the main process printed.

use std::process::ExitCode;

use anyhow::Context;
use futures::AsyncReadExt;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::LogParams;
use tokio::io::AsyncWriteExt;

use crate::args::Logs;
use crate::connect;
use crate::container;
use crate::data_dir::DataDir;
use crate::failure::hinted;

pub async fn run(data_dir: &DataDir, logs: Logs) -> anyhow::Result<ExitCode> {
    let client = connect::running_client(data_dir).await?;
    let pods: Api<Pod> = Api::namespaced(client, &logs.target.namespace);
    let mut params = LogParams {
        container: logs.container,
        previous: logs.previous,
        follow: logs.follow,
        tail_lines: logs.tail,
        timestamps: logs.timestamps,
        ..LogParams::default()
    };
    let mut stream = pods.log_stream(&logs.name, &params).await.map(Box::pin);
    if stream.is_err() && params.container.is_none() {
        params.container = container::default(&pods, &logs.name).await;
        if params.container.is_some() {
            stream = pods.log_stream(&logs.name, &params).await.map(Box::pin);
        }
    }
    let mut stream = stream.map_err(|error| match error {
        kube::Error::Api(status) if status.code == 404 => {
            hinted(format!("no running sandbox `{}`", logs.name), "`asb ps` lists those that are there")
        }
        kube::Error::Api(status) => anyhow::anyhow!("{}", status.message),
        other => anyhow::Error::new(other).context(format!("failed to read the log of `{}`", logs.name)),
    })?;
    let mut out = tokio::io::stdout();
    let mut buffer = vec![0; 16 << 10];
    loop {
        match stream.read(&mut buffer).await.context("the connection to the engine was lost")? {
            0 => return Ok(ExitCode::SUCCESS),
            count => {
                out.write_all(&buffer[..count]).await?;
                out.flush().await?;
            }
        }
    }
}
