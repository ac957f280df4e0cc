// Package dashboard reads the chart's Grafana dashboard, for whoever wants to run
// its queries, and draws what they return: Grafana has no package we could build
// a picture with, so this draws the panels in the places and the kinds the
// dashboard gives them.
//
// It knows the two kinds of panel the dashboard has, numbers and curves over time,
// and refuses any other, so that a panel nobody draws or tests cannot be added. It
// asks nobody: queries go out by [Target.Expr], their answers come in by [Draw],
// and the same answers make the same picture.
package dashboard
