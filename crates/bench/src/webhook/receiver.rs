//! What stands at the other end of a webhook: reads a request, notes when it came and gives a fixed answer, or is bad
//! where the path asks for that. Asked with GET it says what arrived.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::arrivals::Arrivals;
use super::hostile::{Body, Way, empty};
use crate::BenchError;

/// Answers every request on `listener` with this status.
pub async fn serve(listener: TcpListener, status: StatusCode) -> io::Result<()> {
    let arrivals = Arc::new(Arrivals::default());
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let arrivals = Arc::clone(&arrivals);
        tokio::spawn(async move {
            let answer = service_fn(|request| answer(request, &arrivals, status));
            // A connection that breaks concerns its client, who reports it.
            let _broken = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), answer)
                .await;
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    arrivals: &Arrivals,
    status: StatusCode,
) -> Result<Response<Body>, BenchError> {
    let (is_asked, way) = (
        request.method() == Method::GET,
        Way::asked_by(request.uri().path()),
    );
    request.into_body().collect().await?;
    if is_asked {
        let report = serde_json::to_vec(&arrivals.report())?;
        return Ok(Response::new(Full::new(Bytes::from(report)).boxed()));
    }
    if let Some(way) = way {
        return way.answer().await.ok_or_else(|| "hung up".into());
    }
    arrivals.note();
    let mut response = Response::new(empty());
    *response.status_mut() = status;
    Ok(response)
}
