mod etcd_issues;
mod naive_model;
