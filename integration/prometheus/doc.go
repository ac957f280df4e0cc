// Package prometheus runs a real Prometheus for tests: to scrape, to evaluate our
// rules, and to answer our dashboard's queries.
//
// The programs prometheus and promtool are those on the path, else those of
// Debian's package, which is unpacked below the checkout's .cache and not
// installed: installing it would start a service. The way in is [Programs], then
// [Start] for a server or [Promtool] for a check. It owns one process and one
// folder; nothing outlives the caller.
//
// It refuses to know what is scraped: the configuration is the caller's.
package prometheus
