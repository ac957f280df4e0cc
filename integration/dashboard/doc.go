// Package dashboard reads the chart's Grafana dashboard, to run
// its queries, and draws what they return: Grafana has no package we could build
// a picture with, so this draws the panels in the places and the kinds the
// dashboard gives them.
//
// It knows the two kinds of panel the dashboard has, numbers and curves over time, and
// refuses any other, so that a panel that is not drawn or tested cannot be added. It sends
// no queries: [Target.Expr] returns them, and [Draw] takes their answers, and the same
// answers make the same picture.
package dashboard
