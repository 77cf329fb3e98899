//! Checks of requests: whether the server serves them, and whether they are the operator's.
//!
//! | check | against |
//! |---|---|
//! | `Host` is a known name of this server | a foreign name that resolves to this machine (DNS rebinding) |
//! | `Origin` and `Sec-Fetch-Site` are this server's own | requests from pages of other sites |
//! | the operator's key, or a server for this machine only | a tenant that watches the load of others |
//!
//! A request without `Host` is accepted, as every browser sends one.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, header};
use axum::middleware::Next;
use axum::response::Response;
use tokio::sync::Semaphore;

use crate::app::App;
use crate::arguments::AccessSettings;
use crate::error::ApiError;
use crate::site::{Host, Origin, Site};

/// The header that names the kind of page a request comes from. Browsers send it even without
/// `Origin`.
static REQUEST_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Most characters of a header that an error quotes.
const QUOTED_MAX: usize = 100;

/// Passes on requests that are sent to this server, and not by another site's page.
pub(crate) async fn check_site(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let site = known_site(&app.access, &request)?;
    check_origin(&app.access, request.headers(), site.as_ref())?;
    Ok(next.run(request).await)
}

/// Passes on the operator's requests.
pub(crate) async fn check_operator(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    authorize_operator(&app, request.headers())?;
    Ok(next.run(request).await)
}

/// Checks that a request is the operator's. The request does not count against its key's limit.
pub(crate) fn authorize_operator(app: &App, headers: &HeaderMap) -> Result<(), ApiError> {
    let access = &app.access;
    if is_open_to_all(app)? {
        return Ok(());
    }
    app.keys
        .check(headers, |name| {
            access.operator_key.iter().any(|key| key == name)
        })
        .map(drop)
}

/// Checks that a request may watch the page. Returns the watcher permits of its key.
pub(crate) fn authorize_watcher(
    app: &App,
    headers: &HeaderMap,
) -> Result<Option<Arc<Semaphore>>, ApiError> {
    if is_open_to_all(app)? {
        return Ok(None);
    }
    let access = &app.access;
    let mut allowed = access.operator_key.iter().chain(&access.page_key);
    let key = app
        .keys
        .check(headers, |name| allowed.any(|key| key == name))?;
    Ok(Some(key))
}

/// Whether every caller is the operator; an error if no caller can be.
fn is_open_to_all(app: &App) -> Result<bool, ApiError> {
    let access = &app.access;
    if access.operator_open {
        return Ok(true);
    }
    if app.keys.are_required() {
        return Ok(false);
    }
    // Without keys, all users of this machine count as the operator.
    if access.is_for_this_machine() {
        Ok(true)
    } else {
        Err(ApiError::no_operator())
    }
}

/// The site that a request names, if it names one. Unknown sites are an error.
fn known_site(access: &AccessSettings, request: &Request) -> Result<Option<Site>, ApiError> {
    let is_checked = access.is_local() || !access.host_name.is_empty();
    let target = request.uri().authority().map(|target| target.as_str());
    let named = request.headers().get_all(header::HOST).iter();
    let named = named.map(|host| host.to_str().unwrap_or_default());
    let mut first = None;
    for spelled in target.into_iter().chain(named) {
        let site = Site::parse(spelled);
        let is_known = site
            .as_ref()
            .is_some_and(|site| is_known_host(access, &site.host));
        if is_checked && !is_known {
            return Err(ApiError::unknown_host(&quoted(spelled)));
        }
        first = first.or(site);
    }
    Ok(first)
}

fn is_known_host(access: &AccessSettings, host: &Host) -> bool {
    host.is_loopback() || *host == Host::from(access.host) || access.host_name.contains(host)
}

fn check_origin(
    access: &AccessSettings,
    headers: &HeaderMap,
    site: Option<&Site>,
) -> Result<(), ApiError> {
    let mut origins = headers.get_all(header::ORIGIN).iter().peekable();
    if origins.peek().is_none() {
        // Some requests of pages have no `Origin`, such as those for images.
        return match headers.get(&REQUEST_SITE).map(|site| site.as_bytes()) {
            None | Some(b"none" | b"same-origin") => Ok(()),
            Some(other) => {
                let other = quoted(&String::from_utf8_lossy(other));
                Err(ApiError::foreign_page("Sec-Fetch-Site", &other))
            }
        };
    }
    for origin in origins {
        let spelled = origin.to_str().unwrap_or_default();
        let read = spelled.parse::<Origin>().ok();
        let is_ours = read.is_some_and(|origin| {
            access.origin.contains(&origin) || site.is_some_and(|site| origin.is_from(site))
        });
        if !is_ours {
            return Err(ApiError::foreign_page("Origin", &quoted(spelled)));
        }
    }
    Ok(())
}

/// A header's value for an error, truncated.
fn quoted(value: &str) -> String {
    let mut quoted: String = value.chars().take(QUOTED_MAX).collect();
    if quoted.len() < value.len() {
        quoted.push('…');
    }
    format!("{quoted:?}")
}
